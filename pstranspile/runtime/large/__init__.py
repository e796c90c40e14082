"""Large tables: sparse tables whose rows are created on first use, kept in arrays with an index of their ids."""
