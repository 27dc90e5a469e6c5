from placewright_entry import check_packages

check_packages()  # here as well, for when the file above was replaced: all that is ours imports this package
