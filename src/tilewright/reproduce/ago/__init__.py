"""AGO (INFOCOM 2023): its partition of a network beside Relay's, by our partitioners.

The paper's figures are images: what its text says of them is compared.
"""
