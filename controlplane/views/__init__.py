"""Views: TensorBoard, Visdom and the dashboard in a browser, each with its own process, and the way there."""
