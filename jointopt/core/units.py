"""Units in SI, by which numbers are multiplied once at the border; inside, everything is SI (s, bytes, J, W, Hz).

Two exceptions, because the field thinks in them: clocks stay in MHz and temperatures in degrees Celsius.
"""

GIB = 2.0**30
KIB = 2.0**10
GB = 1e9
TERA = 1e12
MICRO = 1e-6
PICO = 1e-12
BITS_PER_BYTE = 8.0
KWH = 3.6e6
KILO = 1e3
Z_90 = 1.645  # no unit: standard deviations in half of a 90 % interval
