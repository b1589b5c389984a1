"""What lives in the platform, as this control plane knows it: fed by one watch, changed by one writer."""
