"""From an alert to a verified fix, or to an escalation with proof."""
