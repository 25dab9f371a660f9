"""One federated round: the server, the sites that own clients' data, and what clients keep between rounds."""
