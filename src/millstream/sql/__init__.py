"""SQL: statements that define pipelines, and queries that become relations. Nothing here needs Spark."""
