"""Where episodes begin, and what is paid for new places."""
