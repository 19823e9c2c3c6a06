// Pause is the first process of every pod: it holds the pod's namespaces, reaps what is left to it and ends on
// SIGTERM or SIGINT.
package main
