"""The log on Kafka: the same contract over librdkafka."""
