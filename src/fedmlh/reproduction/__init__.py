"""The paper's tables, figures and theorems, measured again and shown beside the printed values."""
