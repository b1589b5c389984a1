"""What tests share: servers, twins, machines that are made up."""
