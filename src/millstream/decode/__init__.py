"""Records become rows where they are read, without a JVM, where that is certain to give what Spark gives."""
