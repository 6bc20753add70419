# Prints a linker version script with the entries that a driver of version `max` exports.
BEGIN { FS = "[(), ]+"; print "{"; print "  global:"; print "    sim_*;" }
/^SIM_ENTRY\(/ && $3 <= max { print "    " $5 ";" }
END { print "  local:"; print "    *;"; print "};" }
