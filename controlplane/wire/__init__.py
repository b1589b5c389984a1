"""What servicers of all areas share: refusals as status codes, parts of large answers, common conversions, interceptors."""
