"""The whole stack on one machine: what runs, how it is started, watched and stopped."""
