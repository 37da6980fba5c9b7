"""The report as one HTML file: what it says (`content`, `build`) and how it looks (`html`)."""
