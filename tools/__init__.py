"""What developers run and nobody installs."""
