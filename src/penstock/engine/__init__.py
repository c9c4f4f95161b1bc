"""The seam between front ends and stores: operations go in, outcomes come out."""
