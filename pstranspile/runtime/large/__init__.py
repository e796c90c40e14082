"""Large tables: sparse tables whose rows exist once they are met, kept in arrays with an index of their ids."""
