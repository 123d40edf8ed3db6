"""Addresses and mangled names in, function names out. Pure: files are opened by ``discover``."""
