"""Networks of algorithms that learn from replay, evaluated and differentiated with few passes over what their layers give."""
