"""Small grids in which a team is paid after some of its agents have gone: what posthumous credit is tried on."""
