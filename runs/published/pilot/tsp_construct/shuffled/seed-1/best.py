import numpy as np

def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):
    near = distance_matrix[current_node][unvisited_nodes]
    home = distance_matrix[destination_node][unvisited_nodes]
    mean = distance_matrix[unvisited_nodes].mean(axis=1)
    score = near - 0.2 * home - 0.1 * mean
    return unvisited_nodes[np.argmin(score)]
