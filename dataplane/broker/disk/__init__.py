"""The broker watches its disk here, whether it runs full or hangs; the settings of its storage are here too. Nothing in
this room imports another room of the broker."""
