"""The viewer: run folders in a browser. Command: `steprag view`. It reads run folders; of them it writes only marks."""
