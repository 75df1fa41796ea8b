"""The tutorial as a script: a spreadsheet of two libraries, one model, proposals. `python examples/tutorial.py`."""

import csv
from pathlib import Path

from make_books import write_books

import fedmlh
from fedmlh.serving.answers import answer, write_table
from fedmlh.serving.records import open_records

write_books(Path("data"))
with open("data/books.csv", encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file))
titles, owners = [row["title"] for row in rows], [row["library"] for row in rows]
subjects = [row["subjects"].split("; ") if row["subjects"] else [] for row in rows]
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
    print(f"{label['score']:8.3f}  {100 * label['probability']:5.1f} %  {label['name']}")

records = open_records(Path("data/new.csv"), ["title"])
with open("proposals.csv", "w", encoding="utf-8", newline="") as file:
    file.writelines(write_table(model, records, answer(model, records, threshold=0.7, why=True), why=True))
print("wrote proposals.csv")
