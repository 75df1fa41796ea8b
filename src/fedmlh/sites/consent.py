"""The consent of a site's operator, without which the site sends no open statistics (training one-round)."""

from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.oneround.holding import asks_for_held_out
from fedmlh.sites.agreement import Agreement

HOW_TO_AGREE = "to agree, prepare the site with --open-statistics"


def check_consent(agreement: Agreement, site: str, open_statistics: bool) -> None:
    """Refuse a site whose operator has not agreed to what the site will show, or agreed though nothing is asked for."""
    if agreement.config.training == "rounds":
        if open_statistics:
            raise UserError("--open-statistics has no effect: with training 'rounds' sites send no statistics")
        return
    if not open_statistics:
        twice = ", and the same in a tenth of its points" if asks_for_held_out(agreement.config) else ""
        raise UserError(
            f"site {site} would send open statistics (training 'one-round'): the server will see how often each word "
            f"occurs together with each label and with each other word at this site{twice}; {HOW_TO_AGREE}"
        )


def check_points(config: Config, site: str, points: int) -> None:
    """Refuse a site with so few points that its statistics would show too much about each of them."""
    if points == 0:
        raise UserError(f"site {site} has no training points")
    least = config.min_site_points
    if config.training == "one-round" and points < least:
        raise UserError(
            f"site {site} has {points:,} training points, fewer than min_site_points = {least:,}: the sums of so few "
            f"show too much about each; join with more points, or agree on another min_site_points (--set at init)"
        )
