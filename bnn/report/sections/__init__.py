"""The sections of a report that hold pictures, one module each."""
