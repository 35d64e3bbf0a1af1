"""Config groups that recipes share."""
