"""Families: how a posterior over weights looks. One file each; none knows another, nor a layer type."""
