"""Many runs as one: a study's cells, their queue, the workers that empty it, and the search for a setting."""
