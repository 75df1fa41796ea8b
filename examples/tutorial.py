"""The tutorial as a script: two libraries, one model, subjects for new titles. `python examples/tutorial.py`."""

from make_books import make_books

import fedmlh

titles, subjects, owners = make_books()
data = fedmlh.Dataset.from_texts(titles, subjects, sites=owners, test=0.2, name="books")
print(data)

config = fedmlh.Config.load("recommended").replace(budget_mib=1)
runs = {
    "recommended": fedmlh.run(config, data),
    "FedAvg": fedmlh.run(config.replace(algorithm="fedavg"), data, progress=False),
}
for name, run in runs.items():
    summary = run.summary
    figures = ", ".join(f"P@{k} {100 * value:.1f} %" for k, value in summary["precision"].items())
    sent = (summary["bytes_up_to_best"] + summary["bytes_down_to_best"]) / 2**20
    print(f"{name}: {figures}, {sent:.1f} MiB sent")

model = fedmlh.Model.load(runs["recommended"].folder)
for label in model.predict(["Night trains and vineyards of Portugal"], k=4)[0]:
    print(f"{label['score']:8.3f}  {label['name']}")
