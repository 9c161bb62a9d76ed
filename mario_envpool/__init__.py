"""Super Mario Bros. as a native vector environment with EnvPool's API."""
