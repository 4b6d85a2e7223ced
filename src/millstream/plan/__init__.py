"""Plans: what a pipeline computes, as frozen data. Nothing here runs, and nothing here needs Spark."""
