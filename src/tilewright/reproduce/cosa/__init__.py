"""CoSA (ISCA 2021): its tables and figures, with our mappers and our cost models.

The machine is that of the published configuration, whose sizes are not those of table V (see its preset).
"""
