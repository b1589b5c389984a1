"""Event files of TensorBoard with the reports of sessions."""
