"""JSON Schemas for both layers: are they sound, which defaults do they fill, does a value fit."""
