"""The device emulated on this processor: the text that becomes PTX, with a fiber for each thread."""
