"""Linear quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""
