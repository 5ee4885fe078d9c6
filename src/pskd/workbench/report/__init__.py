"""What finished runs show: tables, figures, one page."""
