"""Apps in a sandbox and its ports: deploy an app, forward a port to this computer, check whether it answers.

Starting and stopping the process of an app is not here: an app is a background job (services/jobs).
"""
