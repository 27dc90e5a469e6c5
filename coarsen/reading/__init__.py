"""Reading models and graphs: files of many formats into one Graph."""
