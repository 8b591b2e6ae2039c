"""The A/B window: registration, driver, measurement, decision, report. Imports the other three packages."""
