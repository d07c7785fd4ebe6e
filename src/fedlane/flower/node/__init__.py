"""`fedlane-supernode`: a Flower node that polls more often and forks its ClientApps from a running process."""
