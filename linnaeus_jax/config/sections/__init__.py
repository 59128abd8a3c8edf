"""The declarations of all keys, one module for a few sections; `config.defaults` puts them together."""
