"""The paper's tables, figures and theorems, measured again and set beside what it printed."""
