"""Capture from MariaDB and MySQL, by their binary log."""
