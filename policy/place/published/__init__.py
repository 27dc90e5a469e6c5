"""Published methods as their papers and code have them; nothing else imports them. See README.md."""
