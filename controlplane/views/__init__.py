"""Views: TensorBoard, Visdom and the dashboard in a browser, each in its own process, and the proxy to them."""
