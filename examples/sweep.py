"""Several settings side by side, each with two seeds. `python examples/sweep.py`.

On the command line, with intervals of 95 % and a report in HTML:

    fedmlh compare recommended --data data/books --set training=rounds --sweep budget_mib=0.25,1 --seeds 2
"""

from statistics import mean

from make_books import make_books

import fedmlh

titles, subjects, owners = make_books()
data = fedmlh.Dataset.from_texts(titles, subjects, sites=owners)
base = fedmlh.Config.load("recommended").replace(training="rounds", rounds=8)

print("budget_mib  P@1, %  P@5, %  MiB sent")
for budget in (0.25, 1):
    summaries = [
        fedmlh.run(base.replace(budget_mib=budget, seed=seed), data, progress=False).summary for seed in range(2)
    ]
    first, fifth = (100 * mean(summary["precision"][k] for summary in summaries) for k in ("1", "5"))
    sent = mean(summary["bytes_up"] + summary["bytes_down"] for summary in summaries) / 2**20
    print(f"{budget:10}  {first:6.1f}  {fifth:6.1f}  {sent:8.2f}")
