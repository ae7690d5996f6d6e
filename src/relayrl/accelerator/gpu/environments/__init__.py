"""Steps of native environments in one launch each: advance, terminate, truncate, begin anew."""
