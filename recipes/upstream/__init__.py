"""What this package relies on in verl and Ray, and the check of the installed versions; imports no other room."""
