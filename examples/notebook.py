# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Subjects for titles
#
# Two libraries train one classifier; neither sees the other's titles. This notebook is kept as text: open it in
# Jupyter with jupytext, or run it as a script, `python examples/notebook.py`.

# %%
from collections import Counter

import matplotlib.pyplot as plt
from make_books import make_books

import fedmlh

# %% [markdown]
# ## The data
#
# A title has a topic, a place, and both together. Most subjects are rare.

# %%
titles, subjects, owners = make_books()
list(zip(titles, subjects, owners, strict=True))[:3]

# %%
counts = sorted(Counter(subject for found in subjects for subject in found).values(), reverse=True)
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(range(1, len(counts) + 1), counts)
axes.set(xlabel="subject, from frequent to rare", ylabel="titles", yscale="log", title="How often subjects occur")
# %% [markdown]
# ## A classifier
#
# `sites` names the library that each title belongs to: every library becomes a client. The last 100 titles of each
# library are kept for the test.

# %%
train = [place for place in range(len(titles)) if place % 500 < 400]
test = [place for place in range(len(titles)) if place % 500 >= 400]
classifier = fedmlh.FedMLHClassifier(settings={"budget_mib": 1, "correct": 20})
classifier.fit(
    [titles[place] for place in train], [subjects[place] for place in train], sites=[owners[place] for place in train]
)
score = classifier.score([titles[place] for place in test], [subjects[place] for place in test])
print(f"P@1 on titles that were kept for the test: {100 * score:.1f} %")

# %% [markdown]
# ## Subjects for a new title

# %%
for label in classifier.predict_top(["Night trains and vineyards of Portugal"], k=4)[0]:
    print(f"{label['probability']:.2f}  {label['label']}")

# %% [markdown]
# ## What each library gets
#
# The precision of the common model on the titles that each library held out.

# %%
sites = classifier.run_.summary["clients"]
figure, axes = plt.subplots(figsize=(4, 3))
axes.bar([site["site"] for site in sites], [100 * site["precision"]["1"] for site in sites])
axes.set(ylabel="P@1, %", ylim=(0, 100), title="On each library's own titles")
